"""The demo: synthetic job postings and a pipeline that merges them. Nothing else imports it."""
