"""How nodes authenticate each other: signed requests, certificates."""
