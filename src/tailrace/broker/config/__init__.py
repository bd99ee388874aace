"""The broker's configuration: every key with its type and default, the layers a value comes from, and the pages on it.

Owns text, types and precedence of settings. Must not know what a setting does: the parts that read it do.
"""
