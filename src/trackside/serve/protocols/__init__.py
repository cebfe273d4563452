"""HOW IS IT SENT: one file per protocol, from the bytes of a push to samples or lines (:mod:`.decoded`)."""
