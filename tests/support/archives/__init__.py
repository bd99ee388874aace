"""Archived topics, archivers, and the object stores and file systems that archives are kept in."""
