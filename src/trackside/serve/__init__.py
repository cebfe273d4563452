"""``trackside serve``: the receiver (:mod:`.receive`) and the HTTP API (:mod:`.api`), started by :mod:`.app`; needs the
extra ``serve``."""
