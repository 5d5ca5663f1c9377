"""The HTTP interface: routes, handlers, and their answers."""
