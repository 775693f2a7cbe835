# frozen_string_literal: true

require "pathname"
require "rbs"
require "rbs/test"
require "yaml"

# The signatures in a folder, beside the code that they describe.
class Signatures
  FOLDER = File.expand_path("../../sig", __dir__)
  # Of other gems' classes.
  OUTSIDE = File.expand_path("signatures", __dir__)
  # What the gem defines is one of these or inside it.
  ROOTS = %w[
    Pgbus::Native Pgbus::Streams::Presence Pgbus::Streams::Cursor Pgbus::Streams::Envelope Pgbus::Streams::SignedName
    Pgbus::Web::StreamApp Pgbus::Web::Streamer
  ].freeze
  # What only the doctor calls, and what Rails does.
  UNSIGNED = /\APgbus::Native::(?:Doctor::|Railtie\z)/

  # The standard libraries that the signatures need.
  def self.libraries(folder = FOLDER)
    YAML.load_file(File.join(folder, "manifest.yaml")).fetch("dependencies").map { |library| library.fetch("name") }
  end

  # Ruby's own classes and the libraries, which take the most time.
  def self.ruby
    @ruby ||= RBS::EnvironmentLoader.new.then do |loader|
      libraries.each { |library| loader.add(library: library, version: nil) }
      RBS::Environment.from_loader(loader)
    end
  end

  attr_reader :env

  def initialize(folder = FOLDER)
    loader = RBS::EnvironmentLoader.new(core_root: nil)
    [folder, OUTSIDE].each { |path| loader.add(path: Pathname(path)) }
    env = self.class.ruby.dup
    loader.load(env: env)
    @env = env.resolve_type_names
    @builder = RBS::DefinitionBuilder.new(env: @env)
  end

  # Every class and module of the gem, of the files that are loaded.
  def modules
    ROOTS.select { |root| Object.const_defined?(root) }.flat_map { |root| with_inner(Object.const_get(root)) }
         .reject { |mod| UNSIGNED.match?(mod.name) }
  end

  # What the code has and the signatures have not, or the other way round, or otherwise: a line each.
  def differences
    names = modules.map(&:name)
    [
      *(names - declared_modules).map { |name| "#{name}: no signature" },
      *(declared_modules - names).map { |name| "#{name}: not in the code" },
      *modules.select { |mod| declared_modules.include?(mod.name) }.flat_map { |mod| differences_in(mod) }
    ]
  end

  private

  def with_inner(mod)
    inner = constants(mod).values.select { |value| value.is_a?(Module) && value.name.start_with?("#{mod.name}::") }
    [mod, *inner.flat_map { |value| with_inner(value) }]
  end

  def constants(mod)
    mod.constants(false).reject { |name| mod.autoload?(name) }.to_h { |name| [name, mod.const_get(name)] }
  end

  def declared_modules
    @declared_modules ||=
      @env.class_decls.keys.map { |name| name.to_s.delete_prefix("::") }.select { |name| ours?(name) }
  end

  def ours?(name)
    ROOTS.any? { |root| name == root || name.start_with?("#{root}::") }
  end

  def differences_in(mod)
    [
      *differences_of_kind(mod),
      *differences_of_constants(mod),
      *differences_of_methods("#{mod.name}#", instance_methods_of(mod), declared_methods(mod, :build_instance)),
      *differences_of_methods("#{mod.name}.", singleton_methods_of(mod), declared_methods(mod, :build_singleton))
    ]
  end

  # A class or a module, and of which class a subclass.
  def differences_of_kind(mod)
    superclass = @builder.ancestor_builder.one_instance_ancestors(type_name(mod)).super_class&.name
    if superclass.nil?
      mod.is_a?(Class) ? ["#{mod.name}: the signature has a module"] : []
    else
      same = mod.is_a?(Class) && mod < Object.const_get(superclass.to_s)
      same ? [] : ["#{mod.name}: the signature has a subclass of #{superclass}"]
    end
  end

  def differences_of_constants(mod)
    code = constants(mod).reject { |_, value| value.is_a?(Module) }
    declared = @env.constant_decls.select { |name, _| name.namespace == type_name(mod).to_namespace }
                   .to_h { |name, entry| [name.name, entry.decl.type] }
    names(code, declared, "#{mod.name}::") + (code.keys & declared.keys).filter_map do |name|
      next if types.value(code[name], declared[name])

      "#{mod.name}::#{name}: #{code[name].inspect} is not a #{declared[name]}"
    end
  end

  def differences_of_methods(prefix, code, declared)
    names(code, declared, prefix) + (code.keys & declared.keys).filter_map do |name|
      signature = like(code[name], merged(declared[name]))
      "#{prefix}#{name}: the signature has #{signature}, the code #{code[name]}" unless signature == code[name]
    end
  end

  def names(code, declared, prefix)
    (code.keys - declared.keys).map { |name| "#{prefix}#{name}: no signature" } +
      (declared.keys - code.keys).map { |name| "#{prefix}#{name}: not in the code" }
  end

  def instance_methods_of(mod)
    methods = mod.public_instance_methods(false)
    methods << :initialize if mod.is_a?(Class) && mod.private_method_defined?(:initialize, false)
    methods.to_h { |name| [name, parameters_of(mod.instance_method(name))] }
  end

  def singleton_methods_of(mod)
    mod.singleton_methods(false).to_h { |name| [name, parameters_of(mod.method(name))] }
  end

  # What Method#parameters says, without blocks, and without the names that a rest may have: what is positional, in its
  # order, and keywords with their kind.
  def parameters_of(method)
    in_order_and_by_name(method.parameters.filter_map do |kind, name|
      [kind, *(name unless %i[rest keyrest].include?(kind))] unless kind == :block
    end)
  end

  def in_order_and_by_name(parameters)
    keywords, positional = parameters.partition { |kind, _| %i[keyreq key].include?(kind) }
    [positional, keywords.to_h(&:reverse)]
  end

  # The parameters of each overload, by the method's name.
  def declared_methods(mod, build)
    methods = @builder.public_send(build, type_name(mod)).methods.select do |name, method|
      # What RBS makes of an initialize is not in the code.
      method.implemented_in == type_name(mod) && !(name == :new && method.defs.first.member.name == :initialize)
    end
    methods.transform_values { |method| method.method_types.map { |type| parameters_in(type.type) } }
  end

  def parameters_in(function)
    in_order_and_by_name({
      req: function.required_positionals.map(&:name), opt: function.optional_positionals.map(&:name),
      rest: [*function.rest_positionals].map { nil }, keyreq: function.required_keywords.keys,
      key: function.optional_keywords.keys, keyrest: [*function.rest_keywords].map { nil }
    }.flat_map { |kind, names| names.map { |name| [kind, *name] } })
  end

  # A keyword that only some overloads want, or have, is an optional one. What is positional must not differ.
  def merged(overloads)
    positional = overloads.map(&:first).uniq
    keywords = overloads.flat_map { |_, known| known.keys }.uniq.to_h do |name|
      [name, overloads.all? { |_, known| known[name] == :keyreq } ? :keyreq : :key]
    end
    [positional.one? ? positional.first : positional, keywords]
  end

  # Without names where the code, being native, has none.
  def like(code, signature)
    positional, keywords = signature
    code.first.none?(&:one?) ? signature : [positional.map { |kind, _| [kind] }, keywords]
  end

  def types
    @types ||= RBS::Test::TypeCheck.new(self_class: Object, builder: @builder, sample_size: nil, unchecked_classes: [])
  end

  def type_name(mod)
    RBS::TypeName.new(name: mod.name.split("::").last.to_sym,
                      namespace: RBS::Namespace.new(path: mod.name.split("::")[0...-1].map(&:to_sym), absolute: true))
  end
end
