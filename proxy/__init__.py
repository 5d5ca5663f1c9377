"""The node's service, which caches chunks and serves byte ranges. It uses asyncio, and knows
nothing of mounts."""
