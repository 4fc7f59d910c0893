from fake_runs import fake_config, fake_run, letters_model  # noqa: F401
