"""One session as plain data, from its records on Kafka: for `polar show` and for the page.

`reading.py` finds the records, `assembly.py` makes a `Story` of them (`story.py`), and `document.py` writes it as JSON.
"""
