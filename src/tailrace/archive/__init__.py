"""The archive of a topic: Parquet files and the manifests that name them. Knows neither brokers nor Spark.

Importing the package, `errors`, `layout`, `location` or `manifest` brings no further dependency; pyarrow is imported by
those who read or write records (`parquet`, `rebuild`, `reader`, `verify`), and by a location when it is opened.
"""
