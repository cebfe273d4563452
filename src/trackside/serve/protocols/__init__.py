"""PROTOCOLS: one file per push protocol, from the bytes of a push to samples or lines (:mod:`.decoded`)."""
