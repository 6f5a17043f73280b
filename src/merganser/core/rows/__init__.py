"""Row work that engines share: scanning keys, matching, rewriting and appending. Decides no policy."""
