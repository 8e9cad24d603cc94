"""OCI images, unpacked once on a host into read-only layers for overlayfs; no daemon takes part."""
