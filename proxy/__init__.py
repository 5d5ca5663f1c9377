"""The node's service: caches chunks, serves byte ranges. asyncio; knows nothing of mounts."""
