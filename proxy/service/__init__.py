"""The process of the proxy: start, composition, logs, end."""
