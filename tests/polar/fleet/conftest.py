"""One real proxy, the scripted engine and real Kafka, as the proxy's own tests have them."""

from tests.proxy.conftest import bench, client, engine_url, proxy, scripted

__all__ = ["bench", "client", "engine_url", "proxy", "scripted"]
