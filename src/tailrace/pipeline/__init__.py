"""Spark over topics: the data source `tailrace`, SQL, and jobs.

The only package that imports pyspark and pyarrow; they come with the extra `tailrace[spark]`. Modules are imported
where they are needed, because every fresh Python worker of Spark pays for each import before its first row.
"""
