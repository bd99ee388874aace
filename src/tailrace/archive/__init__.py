"""The archive of a topic: Parquet files and the manifests that list them. Knows neither brokers nor Spark.

Importing the package, `errors`, `layout`, `location` or `manifest` brings no other dependency. pyarrow is imported by
modules that read or write records (`parquet`, `rebuild`, `reader`, `verify`), and when a location is opened.
"""
