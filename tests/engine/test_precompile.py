from engine.precompile import run_tiny_model


def test_a_tiny_model_runs_to_its_end():
    run_tiny_model("int8")
