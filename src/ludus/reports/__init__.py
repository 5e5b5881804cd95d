"""Pages and figures about a run, made from its folder: report, profile, plots."""
