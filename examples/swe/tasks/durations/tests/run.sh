# -I: Python's own modules are never looked for in the repository.
python3 -I -c 'import unittest; unittest.main(None, argv=["tests", "discover", "-v", "-s", "tests", "-t", "."])'
