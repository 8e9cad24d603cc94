"""The lake: its tables, the conversion of records to rows, its Parquet files, and its manifests."""
