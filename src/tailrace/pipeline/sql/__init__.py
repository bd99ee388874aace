"""`tailrace sql`: topics as views of a query, types guessed from samples, and results as rows or files.

Owns queries. Reads through the data source only.
"""
