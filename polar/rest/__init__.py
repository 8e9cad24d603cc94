"""`polar rest`: the HTTP routes of NVIDIA's Polar (arXiv 2605.24220), for clients that were written against it.

`task_mapping` and `result_mapping` are the two mappings, `api` has the routes, and `service` runs them. The service keeps no state: tasks
and results are on Kafka, so it may restart, and several instances may run.
"""
