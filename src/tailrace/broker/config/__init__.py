"""The broker's configuration: every key with its type and default, the layers of values, and the generated pages.

Owns the text, types and precedence of settings. Must not know what a setting does: the parts that read it do.
"""
