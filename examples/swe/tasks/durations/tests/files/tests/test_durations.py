import unittest

import durations


class TestParse(unittest.TestCase):
    def test_one_unit(self):
        self.assertEqual(durations.parse("90s"), 90)

    def test_several_units(self):
        self.assertEqual(durations.parse("1h30m5s"), 5405)

    def test_what_is_no_duration(self):
        with self.assertRaises(ValueError):
            durations.parse("soon")

    def test_days(self):
        self.assertEqual(durations.parse("2d1h"), 2 * 86400 + 3600)

    def test_other_text_is_refused(self):
        for text in ("1h soon", "1h-30m", "x5s", ""):
            with self.subTest(text), self.assertRaises(ValueError):
                durations.parse(text)


class TestShow(unittest.TestCase):
    def test_largest_units_first(self):
        self.assertEqual(durations.show(5405), "1h30m5s")

    def test_days(self):
        self.assertEqual(durations.show(90000), "1d1h")

    def test_nothing(self):
        self.assertEqual(durations.show(0), "0s")


if __name__ == "__main__":
    unittest.main()
