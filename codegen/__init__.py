if not __name__.startswith("anabranch."):
    raise ImportError(f"import anabranch.{__name__}, not {__name__} (README, 'Layout')")
