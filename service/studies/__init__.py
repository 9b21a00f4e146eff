"""Studies: the service has a process for each, which runs Ray Tune; it enters their trials as jobs like any other."""
