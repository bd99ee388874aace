"""`tailrace sql`: topics as views of a query, types guessed from samples, and results as rows or files.

Owns queries. Reads only through the data source.
"""
