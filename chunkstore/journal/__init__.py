"""Writers of refs and collections beside each other: the journal that orders them."""
