"""Output of jobs: finding its files (:mod:`.holders`), following them (:mod:`.tail`, :mod:`.framing`), parsing them
(:mod:`.scanning`) and selecting the lines to send (:mod:`.line_policy`)."""
