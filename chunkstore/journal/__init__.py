"""Writers of refs and gc runs beside each other: the journal that orders them."""
