"""ScienceWorld (Wang et al., 2022): the real simulator in shared Java machines, and its tasks as an environment."""
