"""Files on a local disk or an object store: locations, locks and staging folders."""
