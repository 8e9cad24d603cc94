"""The runtime `cell`: bubblewrap, a network of its own, a seccomp filter and limits."""
