"""The environment of a process: settings, signing keys, blob store, download cache, installed plug-ins."""
