"""Laws every member of a family obeys; members are read from the unions."""
