"""What jobs print: finding the files that hold it (:mod:`.holders`), following them (:mod:`.tail`, :mod:`.framing`),
reading them (:mod:`.scanning`) and choosing what is sent on (:mod:`.choosing`)."""
