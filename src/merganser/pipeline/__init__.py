"""The Spark job: raw files in; merged datasets and graph out, bad rows kept aside, and a report."""
