"""What a process finds where it runs: settings, signing keys, blob store, download cache, installed plug-ins."""
