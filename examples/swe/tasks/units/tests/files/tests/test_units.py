import unittest

import units


class TestUnits(unittest.TestCase):
    def test_length(self):
        self.assertEqual(units.convert(3, "km", "m"), 3000)

    def test_unknown_units(self):
        with self.assertRaises(ValueError):
            units.convert(1, "m", "parsec")

    def test_temperature(self):
        for value, source, target, expected in ((0, "C", "K", 273.15), (212, "F", "C", 100), (20, "C", "F", 68)):
            with self.subTest(source=source, target=target):
                self.assertAlmostEqual(units.convert(value, source, target), expected)

    def test_two_kinds(self):
        with self.assertRaises(ValueError):
            units.convert(1, "m", "K")


if __name__ == "__main__":
    unittest.main()
