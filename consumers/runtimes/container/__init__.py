"""The runtime `docker`: containers of Docker, or of Podman through its compatible socket."""
