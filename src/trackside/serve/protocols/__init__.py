"""The push protocols, one file each: from the bytes of a push to samples or lines (:mod:`.decoded`)."""
