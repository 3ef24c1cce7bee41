# A big hash of strings and of arrays: filled, updated in another order, partly deleted, summed.
use strict;
use warnings;
my $keys = shift;
my (%text, %list);
for my $i (0 .. $keys - 1) {
    $text{"key:$i"} = "value of $i " . ("x" x ($i % 90));
    $list{$i} = [$i, $i * 3, "s$i"] if $i % 4 == 0;
}
for my $i (0 .. $keys / 2 - 1) {
    my $key = "key:" . ($i * 7 % $keys);
    $text{$key} .= "+$i";
}
delete $text{"key:" . $_ * 5} for 0 .. $keys / 5 - 1;
my ($length, $sum) = (0, 0);
for my $i (0 .. $keys - 1) {
    my $value = $text{"key:$i"};
    $length += length $value if defined $value;
    $sum = ($sum * 31 + ord substr($value, -1)) % 1000003 if defined $value;
    $sum += $list{$i}[1] if $i % 4 == 0;
}
print scalar(keys %text), " ", scalar(keys %list), " $length $sum\n";
