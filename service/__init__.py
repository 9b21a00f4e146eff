"""The command line; REST service and client arrive next."""
