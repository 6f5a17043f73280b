"""Three days of a made-up feed of job postings through the pipeline."""
