"""How nodes know each other: signed requests, certificates."""
