"""Views of results in notebooks and files, one for each verb, found by their existence."""
