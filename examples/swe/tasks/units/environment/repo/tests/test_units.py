import unittest

import units


class TestUnits(unittest.TestCase):
    def test_length(self):
        self.assertEqual(units.convert(3, "km", "m"), 3000)

    def test_unknown_units(self):
        with self.assertRaises(ValueError):
            units.convert(1, "m", "parsec")


if __name__ == "__main__":
    unittest.main()
