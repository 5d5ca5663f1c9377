"""lodefs' library: chunks, packs, trees, refs, stores, push and pull.

Synchronous. Knows no server, no event loop, no kernel interface and no terminal.
"""
