"""The requests of the providers as types, one module for each dialect that needs one."""
